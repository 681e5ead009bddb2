package io.github.rowlock;

import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;

/** The questions about the tokens of a guard, from answers of the cluster, which repeat them. */
final class Heard {
    private final List<Long> tokens;
    private Question newest;
    private long ago;

    Heard(List<Long> tokens) {
        this.tokens = tokens;
    }

    private record One(long ago, Long left, Question question) {
    }

    synchronized Question newest() {
        return newest;
    }

    /** Takes the field {@code asked} of an answer; the time until a lock is taken away. */
    synchronized long hear(List<?> said) {
        var all = new ArrayList<One>();
        for (var one : said) {
            var read = one instanceof Map<?, ?> fields ? read(new Answer(200, fields)) : null;
            if (read != null) {
                all.add(read);
            }
        }
        all.stream().min(Comparator.comparingLong(One::ago)).ifPresent(one -> {
            // The same question grows older from answer to answer.
            if (!isSame(one.question, newest) || one.ago < ago) {
                newest = one.question;
            }
            ago = one.ago;
        });
        return all.stream().map(One::left).filter(Objects::nonNull).mapToLong(TimeUnit.MILLISECONDS::toNanos).min()
            .orElse(Transport.FOREVER);
    }

    private One read(Answer one) {
        var token = Answer.token(one.text("token"));
        var ago = one.number("asked_ms_ago");
        var left = one.number("revoked_in_ms");
        var lock = one.get("lock", String.class);
        var reason = one.get("reason", String.class);
        var by = one.get("by", String.class);
        boolean isWhole = lock != null && reason != null && by != null && ago != null;
        if (!isWhole || token == null || !tokens.contains(token)) {
            return null;
        }
        var now = Instant.now();
        var revoked = left == null ? null : now.plusMillis(left);
        return new One(ago, left, new Question(lock, token, reason, by, now.minusMillis(ago), revoked));
    }

    private static boolean isSame(Question one, Question other) {
        return other != null && one.token() == other.token() && one.lock().equals(other.lock())
            && one.reason().equals(other.reason()) && one.by().equals(other.by())
            && (one.revoked() == null) == (other.revoked() == null);
    }
}
