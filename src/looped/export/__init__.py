"""Trained models outside the package: Hugging Face folders and ONNX files."""
