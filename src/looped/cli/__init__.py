"""The command line. `main.py` lists the verbs; each verb has a module of its own."""
