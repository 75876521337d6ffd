"""Making variants: one trained model in, a family of cheaper forms out, by a recipe of makers."""
