CREATE TRIGGER `branch_renamed` AFTER UPDATE OF `branch_name` ON `project_branches` FOR EACH ROW
WHEN OLD.branch_name <> NEW.branch_name AND OLD.status = NEW.status
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'branch.changed', NEW.project_id, NEW.tenant_id, iif(NEW.is_default, '[]', json_array(NEW.branch_name)), json_object('branch_id', NEW.id, 'branch_name', NEW.branch_name, 'status', NEW.status, 'expires_at', NEW.expires_at, 'labels', json(NEW.labels), 'blocks', json(NEW.blocks), 'hold', NEW.hold);
END;
