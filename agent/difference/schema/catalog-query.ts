import pg from 'pg';
import type { Session } from '../../postgres/connect.ts';
import type { CatalogQuery } from './schema-record.ts';

/** Queries of a session that otherwise leaves every value as text. */
export const catalogQuery =
  (session: Session): CatalogQuery =>
  (text, values) =>
    session.query<Record<string, unknown>>({ text, values: values ?? [], types: pg.types });
