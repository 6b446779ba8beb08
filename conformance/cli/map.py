def map_command() -> None:
    """x"""
