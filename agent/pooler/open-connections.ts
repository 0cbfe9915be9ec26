import { readFile } from 'node:fs/promises';

/** Tables of proc_net(5). A machine without IPv6 lacks the second. */
const TABLES = ['/proc/net/tcp', '/proc/net/tcp6'];

/** `<number>: <local address>:<port> <remote address>:<port> <state>`, in hexadecimal digits. */
const LINE = /^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) /gm;

/** ESTABLISHED and SYN_RECV. Of these, PgBouncer knows only those that it has accepted. */
const OPEN = new Set(['01', '03']);

/** Connections to this port that are open or opening. @param tables texts of the kernel's tables */
export const countConnections = (tables: readonly string[], port: number): number =>
  tables
    .flatMap((table) => [...table.matchAll(LINE)])
    .filter(([, local = '', state = '']) => Number.parseInt(local, 16) === port && OPEN.has(state)).length;

export const readConnections = async (port: number): Promise<number> =>
  countConnections(await Promise.all(TABLES.map((path) => readFile(path, 'utf8').catch(() => ''))), port);
