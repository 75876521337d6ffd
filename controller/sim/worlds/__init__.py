"""World files: what they say, and the variants, devices and arrivals that follow from them."""
