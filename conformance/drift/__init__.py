"""The MPK drift audit: does a Mirage MPK checkout still compute what vLLM computes for DeepSeek-V3?

Four pillars: weights (W), builder topology (B), kernel wiring (K), runtime (R). Read-only: sources are parsed, never
imported; what must be run to be judged runs only with `--execute`, in a process of its own (`execute`).
Layout: `locate/` finds code by meaning and reads it, `profile` says which design a checkout has, `reference` derives
what vLLM does, `rules/` holds one file a pillar, `flow` reads traces, `probes/` is what runs in the subprocess.
"""
