"""MLX Platform's control plane: everything that never imports mlx."""

__version__ = "0.1.0"
