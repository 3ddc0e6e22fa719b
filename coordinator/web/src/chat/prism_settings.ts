// Read by Prism when it is loaded, so this comes before it: it shall not look for code in the page by itself.
(globalThis as { Prism?: unknown }).Prism = { manual: true, disableWorkerMessageHandler: true };
