EXPECTED: dict[tuple[str, str], str] = {}
