"""Model geometry and Hugging Face folders, without torch."""
