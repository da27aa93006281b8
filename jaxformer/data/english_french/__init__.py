"""The English-French grammar that writes the built-in corpus."""
