"""The price of a GPU hour: an amount with its currency and date."""

import pytest

from pytest_llmperf.config.gpu_price import GpuPrice, read_gpu_price
from pytest_llmperf.config.settings import Settings, settings_from, with_options
from pytest_llmperf.errors import ConfigError


@pytest.mark.parametrize("text", ["2.50 USD 2026-11-01", " 2.5  USD 20261101 "])
def test_price_has_amount_currency_and_date(text):
    assert read_gpu_price(text) == GpuPrice(2.5, "USD", "2026-11-01")
    assert str(read_gpu_price(text)) == "2.5 USD 2026-11-01"


@pytest.mark.parametrize(("value", "message"), [
    (2.5, "lacks a currency and a date"),
    ("2.50", "lacks a currency and a date"),
    ("2.50 USD", "lacks the date"),
    ("2.50 $ 2026-11-01", "'\\$' is no currency"),
    ("2.50 usd 2026-11-01", "'usd' is no currency"),
    ("cheap USD 2026-11-01", "'cheap' is no number"),
    ("nan USD 2026-11-01", "'nan' is no number"),
    ("inf USD 2026-11-01", "'inf' is no number"),
    ("0 USD 2026-11-01", "must cost more than 0, got 0"),
    ("-2.5 USD 2026-11-01", "must cost more than 0, got -2.5"),
    ("2.50 USD 2026-02-30", "'2026-02-30' is no date"),
    ("2.50 USD 2026-11-01 spot", "must be amount, currency and date"),
    (["2.50", "USD"], "must be amount, currency and date"),
    (True, "lacks a currency"),
])
def test_invalid_price_is_refused_with_the_wrong_part(value, message):
    with pytest.raises(ConfigError, match=message):
        read_gpu_price(value)
    with pytest.raises(ConfigError, match=f"llmperf.toml: gpu_hour_price = .*{message}"):
        settings_from({"gpu_hour_price": value}, "llmperf.toml")


def test_price_of_the_command_line_replaces_the_setting():
    settings = settings_from({"gpu_hour_price": "2 EUR 2026-01-01"}, "llmperf.toml")
    assert with_options(settings, []).gpu_price == GpuPrice(2.0, "EUR", "2026-01-01")
    assert with_options(settings, ["gpu_hour_price=3 USD 2026-11-01"]).gpu_price == GpuPrice(3.0, "USD", "2026-11-01")
    assert Settings().gpu_price is None
    with pytest.raises(ConfigError, match="--llmperf-set: gpu_hour_price = '3': lacks a currency"):
        with_options(settings, ["gpu_hour_price=3"])
