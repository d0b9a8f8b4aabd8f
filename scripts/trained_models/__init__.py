"""Language, layers and EAGLE-3 head of the models in suites/models; scripts/train_models.py trains them."""
