-- A row for each resource, with the largest token that has written.
CREATE TABLE fence (resource text PRIMARY KEY, token bigint NOT NULL);

-- Locks that row until the end of the transaction: compare and write are one step.
CREATE FUNCTION fence_enter(wanted text, mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE fence SET token = mine WHERE resource = wanted AND token <= mine;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token % for %', mine, wanted USING ERRCODE = 'RL412';
    END IF;
END $$;

-- Guards every write of a table, whatever program makes it.
CREATE FUNCTION fence_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fence_enter(TG_ARGV[0], nullif(current_setting('rowlock.token', true), '')::bigint);
    RETURN NULL;
END $$;

CREATE TABLE report (id int PRIMARY KEY, body text NOT NULL);
CREATE TABLE guarded (id int PRIMARY KEY, body text NOT NULL);
INSERT INTO fence VALUES ('report', 0), ('guarded', 0);
INSERT INTO report VALUES (1, '');
INSERT INTO guarded VALUES (1, '');
CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON guarded
    FOR EACH STATEMENT EXECUTE FUNCTION fence_guard('guarded');
