"""Real safetensors checkpoints: what their headers say, without reading data; and the bytes of one tensor at a time.

Files are hostile until proved otherwise: everything wrong with one is a UsageError of one line naming file and key.
"""
