package io.opentelemetry.api.common;

/** What the adapter uses of OpenTelemetry's. */
public interface Attributes {
    static <T> Attributes of(AttributeKey<T> key, T value) {
        throw new UnsupportedOperationException();
    }

    static <T, U> Attributes of(AttributeKey<T> key1, T value1, AttributeKey<U> key2, U value2) {
        throw new UnsupportedOperationException();
    }

    static <T, U, V> Attributes of(
        AttributeKey<T> key1, T value1, AttributeKey<U> key2, U value2, AttributeKey<V> key3, V value3
    ) {
        throw new UnsupportedOperationException();
    }
}
