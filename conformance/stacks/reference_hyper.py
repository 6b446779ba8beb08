"""The reference stack's hyper-connections, in float32, a stream at a time."""

from __future__ import annotations

import torch

from conformance.stacks.hyper_protocol import HyperCapabilities, Mixing


def _mixes(streams: torch.Tensor, m: Mixing) -> torch.Tensor:
    flat = streams.float().flatten(1)
    power = torch.einsum("td,td->t", flat, flat) / flat.shape[1]
    return torch.einsum("td,md->tm", flat, m.fn) / torch.sqrt(power + m.rms_eps)[:, None]


def _gate(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 + torch.exp(-x))


def _collapsed(share: torch.Tensor, streams: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(streams.shape[0], streams.shape[2])
    for number in range(streams.shape[1]):
        total += share[:, number, None] * streams[:, number].float()
    return total.bfloat16()


class ReferenceHyper:
    def capabilities(self) -> HyperCapabilities:
        return HyperCapabilities("float32, on a CPU")

    def enter(self, streams: torch.Tensor, mixing: Mixing) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n = streams.shape[1]
        give, take, stay = (
            part * scale + base
            for part, scale, base in zip(
                _mixes(streams, mixing).split([n, n, n * n], 1),
                mixing.scale,
                mixing.base.split([n, n, n * n]),
                strict=True,
            )
        )
        stay = stay.view(-1, n, n)
        stay = torch.exp(stay - stay.amax(2, keepdim=True))
        stay = stay / stay.sum(2, keepdim=True) + mixing.eps
        for turn in range(2 * mixing.rounds - 1):
            stay = stay / (stay.sum(1 + turn % 2, keepdim=True) + mixing.eps)
        return _collapsed(_gate(give) + mixing.eps, streams), 2 * _gate(take), stay

    def leave(self, y: torch.Tensor, streams: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        kept = torch.einsum("tij,tih->tjh", comb, streams.float())
        return (kept + post[..., None] * y.float()[:, None]).bfloat16()

    def head(self, streams: torch.Tensor, mixing: Mixing) -> torch.Tensor:
        share = _gate(_mixes(streams, mixing) * mixing.scale + mixing.base) + mixing.eps
        return _collapsed(share, streams)
