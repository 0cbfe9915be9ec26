CREATE TRIGGER `snapshot_changed` AFTER UPDATE OF `status`, `independent` ON `snapshots` FOR EACH ROW
WHEN NEW.kind <> 'deleted' AND NEW.status = 'ready' AND (OLD.status <> NEW.status OR OLD.independent <> NEW.independent)
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'snapshot.changed', NEW.project_id, NEW.tenant_id, iif(NEW.branch_name = 'main', '[]', json_array(NEW.branch_name)), json_object('snapshot_id', NEW.id, 'branch_id', NEW.branch_id, 'name', NEW.name, 'kind', NEW.kind, 'status', 'ready', 'independent', json(iif(NEW.independent, 'true', 'false')));
END;
--> statement-breakpoint
CREATE TRIGGER `snapshot_deleted` AFTER DELETE ON `snapshots` FOR EACH ROW
WHEN OLD.kind <> 'deleted' AND OLD.status = 'ready'
BEGIN
	INSERT INTO `event_outbox` (`type`, `project_id`, `tenant_id`, `branch_names`, `data`)
	SELECT 'snapshot.changed', OLD.project_id, OLD.tenant_id, iif(OLD.branch_name = 'main', '[]', json_array(OLD.branch_name)), json_object('snapshot_id', OLD.id, 'branch_id', OLD.branch_id, 'name', OLD.name, 'kind', OLD.kind, 'status', 'deleted', 'independent', json(iif(OLD.independent, 'true', 'false')));
END;
