"""Networks that are to learn from others; PyTorch is imported where one is made."""

from __future__ import annotations

from typing import Any


def small() -> Any:
    """uint8 [N, 28, 28] -> logits [N, 10]: one convolution and a linear layer."""
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 5, stride=3)
            self.linear = torch.nn.Linear(4 * 8 * 8, 10)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            features = torch.relu(self.conv(image.unsqueeze(1).float() / 255.0))
            return self.linear(features.flatten(1))

    return Small()


def narrow() -> Any:
    """Of too few classes."""
    import torch

    return torch.nn.Sequential(to_float(), torch.nn.Flatten(), torch.nn.Linear(784, 3))


def three_values() -> Any:
    """float32 [N, 4] -> [N, 3], of no classes."""
    import torch

    return torch.nn.Linear(4, 3)


def to_float() -> Any:
    """uint8 to float32, of any shape."""
    import torch

    class ToFloat(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image.float()

    return ToFloat()
