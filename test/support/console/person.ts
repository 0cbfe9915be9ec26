import type { Page } from 'playwright-core';
import { deliveredMails } from '../sign-in/mails.ts';
import { PASSWORD, type SignInSite } from '../sign-in/sign-in.ts';
import { readStackFile } from '../stack/started-stack.ts';

export const siteOf = ({ url, devDir }: { url: string; devDir: string }): SignInSite => ({
  url,
  mails: () => deliveredMails({ state: readStackFile(devDir) }),
});

/** Signs in with the password of an account that exists, without a second factor. */
export async function signInOnPage(page: Page, email: string, path = '/'): Promise<void> {
  await page.goto(path);
  await page.getByLabel('E-mail address').fill(email);
  await page.getByRole('button', { name: 'Continue', exact: true }).click();
  await page.getByLabel('Password').fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  const question = page.getByRole('button', { name: 'Not now' });
  const signOut = page.getByRole('button', { name: 'Sign out' });
  // A browser asks for a second factor once.
  await question.or(signOut).first().waitFor();
  if (await question.isVisible()) await question.click();
  await signOut.waitFor();
}
