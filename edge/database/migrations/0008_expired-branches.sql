ALTER TABLE `project_branches` ADD `deletes_at` integer;--> statement-breakpoint
UPDATE `project_branches` SET `deletes_at` = (unixepoch() + 604800) * 1000 WHERE `status` = 'expired';--> statement-breakpoint
UPDATE `project_branches` SET `parent_branch_id` = NULL WHERE `parent_branch_id` IN (SELECT `id` FROM `project_branches` WHERE `status` = 'deleted');
