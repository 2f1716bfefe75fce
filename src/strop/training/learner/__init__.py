"""Policy and critic: forward passes, loss and optimiser steps."""
