"""Arguments of small configurations of transformers, for tests of several rooms."""

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 20}
SMALL |= {"intermediate_size": 24}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WAVES = SMALL | {"conv_dim": (8, 8), "conv_stride": (4, 3), "conv_kernel": (6, 3)}
WAVES |= {"feat_extract_norm": "layer", "num_conv_pos_embeddings": 4}
WAVES |= {"num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True}
