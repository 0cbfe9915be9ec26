ALTER TABLE `hosts` ADD `role` text DEFAULT 'primary' NOT NULL;--> statement-breakpoint
UPDATE `hosts` SET `role` = CASE WHEN `standby_of` IS NULL THEN CASE WHEN `yields_to` IS NULL THEN 'primary' ELSE 'closing' END WHEN `fenced` THEN 'fenced' ELSE 'standby' END;
