-- +goose Up

-- Sums of tts_usage per day and value of one property (provider, voice, model or
-- endpoint), and with the property '' per day. Triggers maintain them, so that the usage
-- that older servers add is in them too. The key of a row in tts_usage never changes.
CREATE TABLE usage_totals (
    team_id           TEXT   NOT NULL,
    property          TEXT   NOT NULL,
    day               TEXT   NOT NULL,
    value             TEXT   NOT NULL,
    characters        BIGINT NOT NULL,
    cached_characters BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    PRIMARY KEY (team_id, property, day, value)
);

-- +goose StatementBegin
CREATE FUNCTION lock_usage_totals() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.team_id, 0));
    RETURN NEW;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION add_usage_totals() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    change tts_usage;
BEGIN
    IF TG_OP = 'DELETE' THEN
        change := OLD;
        change.characters := -OLD.characters;
        change.cached_characters := -OLD.cached_characters;
        change.requests := -OLD.requests;
    ELSE
        change := NEW;
        IF TG_OP = 'UPDATE' THEN
            change.characters := NEW.characters - OLD.characters;
            change.cached_characters := NEW.cached_characters - OLD.cached_characters;
            change.requests := NEW.requests - OLD.requests;
        END IF;
    END IF;
    INSERT INTO usage_totals (team_id, property, day, value, characters, cached_characters, requests) VALUES
        (change.team_id, '', change.day, '', change.characters, change.cached_characters, change.requests),
        (change.team_id, 'provider', change.day, change.provider, change.characters, change.cached_characters, change.requests),
        (change.team_id, 'voice', change.day, change.voice, change.characters, change.cached_characters, change.requests),
        (change.team_id, 'model', change.day, change.model, change.characters, change.cached_characters, change.requests),
        (change.team_id, 'endpoint', change.day, change.endpoint_id, change.characters, change.cached_characters, change.requests)
    ON CONFLICT (team_id, property, day, value) DO UPDATE SET
        characters = usage_totals.characters + excluded.characters,
        cached_characters = usage_totals.cached_characters + excluded.cached_characters,
        requests = usage_totals.requests + excluded.requests;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- All usage of a team and day shares a total. Servers add usage in the order of teams and
-- days. They would deadlock if they locked usage before the total, so a lock comes first.
CREATE TRIGGER tts_usage_lock BEFORE INSERT ON tts_usage FOR EACH ROW EXECUTE FUNCTION lock_usage_totals();
-- Creating a trigger also locks the table against writers until the totals are complete.
CREATE TRIGGER tts_usage_totals AFTER INSERT OR UPDATE OR DELETE ON tts_usage FOR EACH ROW EXECUTE FUNCTION add_usage_totals();

INSERT INTO usage_totals SELECT team_id, '', day, '', SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day;
INSERT INTO usage_totals SELECT team_id, 'provider', day, provider, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, provider;
INSERT INTO usage_totals SELECT team_id, 'voice', day, voice, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, voice;
INSERT INTO usage_totals SELECT team_id, 'model', day, model, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, model;
INSERT INTO usage_totals SELECT team_id, 'endpoint', day, endpoint_id, SUM(characters), SUM(cached_characters), SUM(requests)
    FROM tts_usage GROUP BY team_id, day, endpoint_id;
