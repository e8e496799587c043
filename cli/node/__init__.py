"""Commands about one node: they ask its salusd, or change what it does."""
