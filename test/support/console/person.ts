import type { Page } from 'playwright-core';
import { deliveredMails } from '../sign-in/mails.ts';
import { mailTo, PASSWORD, readCode, type SignInSite } from '../sign-in/sign-in.ts';
import { readStackFile } from '../stack/started-stack.ts';

export const siteOf = ({ url, devDir }: { url: string; devDir: string }): SignInSite => ({
  url,
  mails: () => deliveredMails({ state: readStackFile(devDir) }),
});

/** Fills in the sign-up, and the code that is mailed. */
async function signUpOnPage(page: Page, site: SignInSite, email: string): Promise<void> {
  await page.goto('/sign-in?way=sign_up');
  await page.getByLabel('Your name').fill('Ada Lovelace');
  await page.getByLabel('E-mail address').fill(email);
  await page.getByLabel('Password').fill(PASSWORD);
  await page.getByRole('button', { name: 'Create an account' }).click();
  await page.getByLabel('Code', { exact: true }).fill(readCode(await mailTo(site, email)));
  await page.getByRole('button', { name: 'Continue' }).click();
}

/** Signs in with the password of an account that exists, without a second factor. */
export async function signInOnPage(page: Page, email: string, path = '/'): Promise<void> {
  await page.goto(path);
  await page.getByLabel('E-mail address').fill(email);
  await page.getByLabel('Password').fill(PASSWORD);
  await page.getByRole('button', { name: 'Sign in', exact: true }).click();
  await page.getByRole('button', { name: 'Not now' }).click();
  await page.getByRole('button', { name: 'Sign out' }).waitFor();
}
