"""The live control loop: an actor that takes reports and hands out orders."""
