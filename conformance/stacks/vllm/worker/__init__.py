"""Drives a real vLLM. These files are sent as source to its interpreter: stdlib, torch and vLLM, nothing of ours."""
