"""White-box transformers for timm; importing this package registers every model."""
