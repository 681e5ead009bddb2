package io.opentelemetry.api.common;

/** What the adapter uses of OpenTelemetry's. */
public interface AttributeKey<T> {
    static AttributeKey<String> stringKey(String key) {
        throw new UnsupportedOperationException(key);
    }

    static AttributeKey<Boolean> booleanKey(String key) {
        throw new UnsupportedOperationException(key);
    }
}
