"""Keep Hugging Face's libraries off the network and out of the user's cache folder."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="looped-hf-")
