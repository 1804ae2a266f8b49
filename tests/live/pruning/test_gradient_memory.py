"""Arrays that the backward pass of scores of heads keeps."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture is of PyTorch models")
transformers = pytest.importorskip(
    "transformers", minversion="5", reason="transformers 5 is not installed"
)

from pathkernel_pruning.live.head_choice import curvature_scores
from pathkernel_pruning.live.head_scores import gradient_scores

HEADS, TOKENS, EXAMPLES = 4, 37, 3
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "vocab_size": 40,
}


@pytest.mark.filterwarnings("ignore:.*examples are few:RuntimeWarning")
@pytest.mark.parametrize("score", ["gradient", "curvature"])
def test_attention_weights_are_not_kept(score):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    batches = [torch.randint(40, (EXAMPLES, TOKENS)) for _ in range(2)]

    def outputs(batch):
        return model(batch).logits[:, -1], batch[:, 0]

    def loss(batch):
        return torch.nn.functional.cross_entropy(*outputs(batch), reduction="none")

    def scores():
        if score == "gradient":
            return gradient_scores(model, batches, loss)
        return curvature_scores(model, batches, outputs, loss="cross-entropy")

    kept = []

    def keep(value):
        kept.append(tuple(value.shape))
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        fused = scores()
    assert kept
    assert not any(shape[-2:] == (TOKENS, TOKENS) for shape in kept if len(shape) > 3)
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    np.testing.assert_allclose(fused, scores(), rtol=1e-4, atol=1e-6)
