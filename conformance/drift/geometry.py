"""DeepSeek-V3 as published: the model that both sides run. Source: its config.json (deepseek-ai/DeepSeek-V3)."""

HIDDEN = 7168
LAYERS = 61
HEADS = 128
Q_LORA_RANK = 1536
KV_LORA_RANK = 512
QK_NOPE_HEAD_DIM = 128
QK_ROPE_HEAD_DIM = 64
V_HEAD_DIM = 128
INTERMEDIATE = 18432
MOE_INTERMEDIATE = 2048
EXPERTS = 256
EXPERTS_PER_TOKEN = 8
FIRST_MOE_LAYER = 3
VOCAB = 129280
#: rope_scaling: factor and mscale_all_dim of its YaRN.
ROPE_FACTOR = 40.0
MSCALE_ALL_DIM = 1.0
#: What a query head is after absorption: latent plus rope.
ABSORBED_HEAD_DIM = KV_LORA_RANK + QK_ROPE_HEAD_DIM
