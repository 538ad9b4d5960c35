-- Carries the keys of an idgo database over to Redleaf's leaf_alloc, so that no number is given twice.
--
--   mysql idgo < scripts/schema.sql                 -- makes leaf_alloc, here in the same database
--   mysql idgo < scripts/migrate/from-idgo.sql      -- makes the procedure, changes nothing
--   mysql idgo -e "CALL redleaf_from_idgo('leaf_alloc', 100000, 1000)"
--
-- The arguments: where to (`database.table` works), the margin, and the step of the new rows.
--
-- How it can't repeat: each key's row holds the highest number that any idgo may give out. In one transaction that number goes to
-- leaf_alloc, and the largest number there is takes its place: an idgo that asks for its next range then fails, as it can't
-- read that number. What an idgo holds in memory lies below what Redleaf begins with. The margin is for an idgo whose COMMIT failed
-- unnoticed (it does not look) while it gave the range out: 2000 each time.
-- It may be run again: keys that were carried over are left as they are. To go back, set a key's row to its max_id in leaf_alloc.
DROP PROCEDURE IF EXISTS redleaf_from_idgo;
DELIMITER //
CREATE PROCEDURE redleaf_from_idgo(IN target VARCHAR(140), IN margin BIGINT, IN new_step BIGINT)
BEGIN
  DECLARE done INT DEFAULT 0;
  DECLARE name VARCHAR(255);
  DECLARE names CURSOR FOR SELECT k FROM `__idgo__`;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  SET @redleaf_target = CONCAT('`', REPLACE(REPLACE(target, '`', '``'), '.', '`.`'), '`');
  SET @redleaf_margin = margin, @redleaf_step = new_step;
  DROP TEMPORARY TABLE IF EXISTS redleaf_report;
  CREATE TEMPORARY TABLE redleaf_report (tag VARCHAR(255), outcome VARCHAR(255));

  OPEN names;
  each_key: LOOP
    FETCH names INTO name;
    IF done THEN LEAVE each_key; END IF;
    SET @redleaf_id = NULL, @redleaf_tag = name;
    SET @redleaf_table = CONCAT('`', REPLACE(name, '`', '``'), '`');

    IF NOT EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = name) THEN
      INSERT INTO redleaf_report VALUES (name, 'has no table: left out');
      ITERATE each_key;
    END IF;

    START TRANSACTION;
    SET @redleaf_sql = CONCAT('SELECT MAX(id) INTO @redleaf_id FROM ', @redleaf_table, ' FOR UPDATE');
    PREPARE s FROM @redleaf_sql; EXECUTE s; DEALLOCATE PREPARE s;
    IF @redleaf_id IS NULL THEN
      INSERT INTO redleaf_report VALUES (name, 'has no row: left out');
    ELSEIF @redleaf_id = 18446744073709551615 THEN
      INSERT INTO redleaf_report VALUES (name, 'was carried over before');
    ELSE
      SET @redleaf_sql = CONCAT('INSERT INTO ', @redleaf_target, ' (biz_tag, max_id, step, description) VALUES (?, @redleaf_id + 1 + @redleaf_margin, @redleaf_step, ''from idgo'')',
        ' ON DUPLICATE KEY UPDATE max_id = GREATEST(max_id, VALUES(max_id))');
      PREPARE s FROM @redleaf_sql; EXECUTE s USING @redleaf_tag; DEALLOCATE PREPARE s;
      SET @redleaf_sql = CONCAT('UPDATE ', @redleaf_table, ' SET id = 18446744073709551615');
      PREPARE s FROM @redleaf_sql; EXECUTE s; DEALLOCATE PREPARE s;
      INSERT INTO redleaf_report VALUES (name, CONCAT('stood at ', @redleaf_id, ', begins at ', @redleaf_id + 1 + margin));
    END IF;
    COMMIT;
    SET done = 0; -- a SELECT that found nothing is not the end of the keys
  END LOOP;
  CLOSE names;
  SELECT * FROM redleaf_report ORDER BY tag;
  DROP TEMPORARY TABLE redleaf_report;
END//
DELIMITER ;
