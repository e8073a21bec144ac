"""
LeNet-5 with ReLU and max pooling: 6@5x5, 16@5x5, then 120, 84 and K units (LeCun et al. 1998).

On 28x28 images the first convolution pads by 2, so that both image sizes reach the dense layers as 16 maps of 5x5:
61,706 weights at 1x28x28 and K = 10, 62,006 at 3x32x32.
"""

from typing import Any, final

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_bnn.models.networks import sizes
from pyro_bnn.models.networks.pooling import max_pool_2x2

__all__ = ["LeNet5"]


@final
class LeNet5(nn.Module):
    """
    LeNet-5 for images of 28x28 or 32x32 pixels.

    :param in_channels: C, the channels of an image.
    :param num_classes: K, the number of outputs.
    :param image_size: H = W, the pixels of a side.
    """

    sized_for = staticmethod(sizes.square_images)

    def __init__(self, in_channels: int = 1, num_classes: int = 10, image_size: int = 28) -> None:
        super().__init__()
        if image_size not in (28, 32):
            raise ValueError(f"image_size={image_size} does not fit LeNet-5: pass 28 or 32")
        self.config: dict[str, Any] = dict(in_channels=in_channels, num_classes=num_classes, image_size=image_size)
        self.conv1 = nn.Conv2d(in_channels, 6, kernel_size=5, padding=2 if image_size == 28 else 0)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """
        Return logits (B, K) for images (B, C, H, W).

        :param x: images (B, C, H, W).
        """
        x = max_pool_2x2(F.relu(self.conv1(x)))  # (B, 6, 14, 14)
        x = max_pool_2x2(F.relu(self.conv2(x)))  # (B, 16, 5, 5)
        x = F.relu(self.fc1(x.flatten(1)))  # (B, 120)
        x = F.relu(self.fc2(x))  # (B, 84)
        return self.fc3(x)  # type: ignore[no-any-return]
