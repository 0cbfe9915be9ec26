import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { endianness } from 'node:os';
import { join } from 'node:path';

const PAGE_BYTES = 8_192;
/** Four bytes of flags for four transaction ids of four bytes each. */
const GROUP_BYTES = 20;
const GROUPS_OF_PAGE = Math.floor(PAGE_BYTES / GROUP_BYTES);
export const MEMBERS_OF_PAGE = 4 * GROUPS_OF_PAGE;
const PAGES_OF_FILE = 32;
const OFFSETS = 2 ** 32;
const FILES = Math.floor(OFFSETS / (MEMBERS_OF_PAGE * PAGES_OF_FILE)) + 1;
const SAMPLED_PAGES = 4;

/** Members that PostgreSQL has stored since the last reading. */
export interface NewMembers {
  count: number;
  /** The transaction ids of some of them, the newest. */
  ids: number[];
}

/**
 * The members of multixacts, of which the host has four thousand million: the transactions that hold a lock of
 * one row together. No view shows how many there are, or whose, so PostgreSQL's files are read, which contain
 * the ids. Up to 32 pages (`multixact_member_buffers`) are still in its memory.
 */
export class MultixactMembers {
  readonly #folder: string;
  /** Pages since the first one; null before the first reading. */
  #pages: number | null = null;
  #file = 0;

  constructor(dataDir: string) {
    this.#folder = join(dataDir, 'pg_multixact/members');
  }

  /** @param offset where the next members were stored at the last checkpoint */
  read(offset: number): NewMembers {
    if (this.#pages === null) this.#file = Math.floor(offset / (MEMBERS_OF_PAGE * PAGES_OF_FILE));
    for (let next = (this.#file + 1) % FILES; this.#pagesIn(next) > 0; next = (next + 1) % FILES)
      this.#file = next;
    const pages = this.#file * PAGES_OF_FILE + this.#pagesIn(this.#file);
    const before = this.#pages ?? pages;
    this.#pages = pages;
    // The numbers begin again after the last one.
    const grown = pages >= before ? pages - before : pages + FILES * PAGES_OF_FILE - before;
    return { count: grown * MEMBERS_OF_PAGE, ids: this.#sample(Math.min(grown, SAMPLED_PAGES)) };
  }

  #pagesIn(file: number): number {
    return Math.floor((statSync(this.#path(file), { throwIfNoEntry: false })?.size ?? 0) / PAGE_BYTES);
  }

  #path(file: number): string {
    return join(this.#folder, file.toString(16).toUpperCase().padStart(4, '0'));
  }

  /** The ids in the last pages of the newest file. */
  #sample(pages: number): number[] {
    if (pages === 0) return [];
    const bytes = Buffer.alloc(Math.min(pages, this.#pagesIn(this.#file)) * PAGE_BYTES);
    const file = openSync(this.#path(this.#file), 'r');
    try {
      readSync(file, bytes, 0, bytes.length, this.#pagesIn(this.#file) * PAGE_BYTES - bytes.length);
    } finally {
      closeSync(file);
    }
    const ids: number[] = [];
    for (let page = 0; page < bytes.length; page += PAGE_BYTES) {
      for (let member = 0; member < MEMBERS_OF_PAGE; member++) {
        const at = page + Math.floor(member / 4) * GROUP_BYTES + 4 + (member % 4) * 4;
        const id = endianness() === 'LE' ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at);
        if (id !== 0) ids.push(id);
      }
    }
    return ids;
  }
}
