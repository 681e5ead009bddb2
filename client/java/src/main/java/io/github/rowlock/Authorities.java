package io.github.rowlock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Trust in the authorities of a PEM file, and in no others. */
final class Authorities {
    private Authorities() {
    }

    /** A context for HTTPS. Throws {@link IllegalArgumentException} with the file that is missing or has no certificate. */
    static SSLContext trust(Path file) {
        try (var pem = Files.newInputStream(file)) {
            var store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (var certificate : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                store.setCertificateEntry("authority " + store.size(), certificate);
            }
            if (store.size() == 0) {
                throw new IllegalArgumentException("no certificate in " + file);
            }
            var trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trusted.init(store);
            var context = SSLContext.getInstance("TLS");
            context.init(null, trusted.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException error) {
            throw new IllegalArgumentException("cannot read the authorities of " + file + ": " + error, error);
        }
    }
}
