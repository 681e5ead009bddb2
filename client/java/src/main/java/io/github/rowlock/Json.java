package io.github.rowlock;

import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the API needs: maps, lists, strings, Long, Double, Boolean, null. */
final class Json {
    /** Documents of the API are three levels deep. */
    private static final int DEPTH_MAX = 32;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object parse(String text) {
        var json = new Json(text);
        var value = json.value(0);
        json.blanks();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    static String write(Object value) {
        var out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    /** UTF-8. A surrogate without its other half would become another text: it is refused. */
    static byte[] bytes(String text) {
        try {
            var bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
            return Arrays.copyOf(bytes.array(), bytes.limit());
        } catch (CharacterCodingException unpaired) {
            throw new IllegalArgumentException("not text: it has half a surrogate pair", unpaired);
        }
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            char before = '{';
            for (var entry : map.entrySet()) {
                out.append(before);
                quote((String) entry.getKey(), out);
                write(entry.getValue(), out.append(':'));
                before = ',';
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            char before = '[';
            for (var item : list) {
                write(item, out.append(before));
                before = ',';
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            quote(string, out);
        } else {
            out.append(value);
        }
    }

    private static void quote(String string, StringBuilder out) {
        out.append('"');
        for (char c : string.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not JSON at character " + at);
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        blanks();
        if (at == text.length()) {
            throw wrong();
        }
        return text.charAt(at);
    }

    private boolean take(char wanted) {
        if (peek() != wanted) {
            return false;
        }
        at++;
        return true;
    }

    private void need(boolean is) {
        if (!is) {
            throw wrong();
        }
    }

    private Object value(int depth) {
        need(depth < DEPTH_MAX);
        char first = peek();
        switch (first) {
            case '{':
                return map(depth);
            case '[':
                return list(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Object word(String word, Object value) {
        need(text.startsWith(word, at));
        at += word.length();
        return value;
    }

    private Map<String, Object> map(int depth) {
        var map = new LinkedHashMap<String, Object>();
        take('{');
        if (take('}')) {
            return map;
        }
        do {
            need(peek() == '"');
            var name = string();
            need(take(':'));
            map.put(name, value(depth + 1));
        } while (take(','));
        need(take('}'));
        return map;
    }

    private List<Object> list(int depth) {
        var list = new ArrayList<>();
        take('[');
        if (take(']')) {
            return list;
        }
        do {
            list.add(value(depth + 1));
        } while (take(','));
        need(take(']'));
        return list;
    }

    private String string() {
        take('"');
        var out = new StringBuilder();
        while (true) {
            need(at < text.length());
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            out.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        need(at < text.length());
        char c = text.charAt(at++);
        if (c == 'u') {
            need(at + 4 <= text.length());
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }
        int known = "bfnrt".indexOf(c);
        need(known >= 0 || "\"\\/".indexOf(c) >= 0);
        return known < 0 ? c : "\b\f\n\r\t".charAt(known);
    }

    private Object number() {
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        var digits = text.substring(from, at);
        try {
            return Long.valueOf(digits);
        } catch (NumberFormatException e) {
            return Double.valueOf(digits);
        }
    }
}
