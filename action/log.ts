import * as core from '@actions/core';
import { printable } from '../shared/printable.ts';

/** Writers of the build's log, which escape text that can come from a database. */

export const setFailed = (message: string): void => core.setFailed(printable(message));

export const info = (message: string): void => core.info(printable(message));

export const warning = (message: string): void => core.warning(printable(message));
