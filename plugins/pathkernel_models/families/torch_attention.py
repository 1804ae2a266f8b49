"""``torch.nn.MultiheadAttention``, whose projections are not modules."""

from __future__ import annotations

from torch import Tensor, nn

from pathkernel_models.attention_module import AttentionModule, change_after


def describe_torch(number: int, name: str, module: nn.MultiheadAttention) -> AttentionModule:
    """Describe ``torch.nn.MultiheadAttention``, whose projections are not modules."""
    projection = module._modules["out_proj"]  # registered, which a substitute may hide

    def values() -> Tensor:
        weight = module.v_proj_weight if module.in_proj_weight is None else module.in_proj_weight
        weight = weight.detach()[-module.embed_dim :]
        return weight.unflatten(0, (module.num_heads, -1))

    return AttentionModule(
        number=number,
        name=name,
        module=module,
        heads=module.num_heads,
        groups=module.num_heads,
        projection=projection,
        output_axis=1,
        change_outputs=change_after(module, projection),
        values=values,
        swapped=not module.batch_first,
        runs_projection=False,
    )
