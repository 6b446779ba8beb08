"""The oracle: formulas in plain Python and PyTorch, one short file a subject. Imports nothing of ours."""
