"""All ranks at once: one process a rank, joined by torch.distributed (gloo on CPUs, NCCL with a GPU a rank).

- `own`: a worker of our own interpreter (the launcher, channel and time limits are those of `conformance.stacks`)
- `processes`: starts one a rank, asks all of them at once, finds out which one is to blame when it goes wrong
- `rank`: what runs in each of them; `member`: one rank as a check's rank function sees it
- `ranks`: together where there is a device for each, else in turn in this process, and the words that say which
"""
