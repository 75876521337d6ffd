"""Expected value: the variants to hold, and the workers, by what they are expected to gain."""
