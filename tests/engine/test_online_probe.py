"""The online probe: learns, leaves the features alone, and its written-out gradient is autograd's."""

import torch
import torch.nn.functional as F

from aotadmm_timm.engine.online_probe import OnlineProbe


def data(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    labels = torch.randint(0, 4, (n,), generator=generator)
    centres = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    return centres[labels] + 0.3 * torch.randn(n, 16, generator=generator), labels


def test_learns_separable_classes() -> None:
    probe = OnlineProbe(16, 4, lr=0.02)
    accuracy = [probe(*data(64 + i)).item() for i in range(60)]
    assert accuracy[0] < 0.6
    assert sum(accuracy[-10:]) / 10 > 0.95


def test_a_step_is_adams_on_the_cross_entropy() -> None:
    probe = OnlineProbe(16, 4)
    weight = torch.zeros(4, 17, requires_grad=True)
    optimizer = torch.optim.Adam([weight], 1e-3)
    for i in range(5):
        features, labels = data(32 + i)
        x = F.pad(F.layer_norm(features, (16,)), (0, 1), value=1.0)
        logits = x @ weight.T
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        got = probe(features, labels)
        assert got == (logits.argmax(1) == labels).float().mean()
        optimizer.step()
    torch.testing.assert_close(probe.weight, weight.detach(), rtol=1e-4, atol=1e-6)


def test_gives_no_gradient_and_keeps_its_state() -> None:
    features, labels = data(32)
    features.requires_grad_()
    probe = OnlineProbe(16, 4)
    assert not probe(features, labels).requires_grad
    assert list(probe.parameters()) == []
    other = OnlineProbe(16, 4)
    other.load_state_dict(probe.state_dict())
    probe(*data(33))
    other(*data(33))
    assert torch.equal(probe.weight, other.weight)
