import { integer } from 'drizzle-orm/sqlite-core';

/** Unix milliseconds. */
export const moment = (name: string) => integer(name, { mode: 'timestamp_ms' });
export const created = () => moment('created_at').notNull();
export const updated = () => moment('updated_at').notNull();
