-- Tables of the drill, behind postgres.sql: one that its writers fence, and one with a trigger.
CREATE TABLE report (id int PRIMARY KEY, body text NOT NULL);
CREATE TABLE guarded (id int PRIMARY KEY, body text NOT NULL);
INSERT INTO report VALUES (1, '');
INSERT INTO guarded VALUES (1, '');
CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded
    FOR EACH STATEMENT EXECUTE FUNCTION fence_guard('guarded');
