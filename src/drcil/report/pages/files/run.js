drawAll();
