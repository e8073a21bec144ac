"""What several rooms need and no room owns."""

__all__: list[str] = []
